# What the driver needs of Linux, for `from cython.cimports.remoting.native.compiled.kernel import ...`.
from libc.stdint cimport uint16_t, uint32_t, uint64_t

cdef extern from "sys/epoll.h":
    ctypedef union epoll_data_t:
        uint64_t u64
    ctypedef struct epoll_event "struct epoll_event":
        uint32_t events
        epoll_data_t data
    const uint32_t EPOLLIN
    const uint32_t EPOLLOUT
    const uint32_t EPOLLRDHUP
    const uint32_t EPOLLHUP
    const uint32_t EPOLLERR
    const uint32_t EPOLLET
    const int EPOLL_CLOEXEC
    const int EPOLL_CTL_ADD
    const int EPOLL_CTL_MOD
    const int EPOLL_CTL_DEL
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int fd, epoll_event *event)
    int epoll_wait(int epoll, epoll_event *events, int events_max, int timeout_ms)

cdef extern from "sys/socket.h":
    ctypedef unsigned int socklen_t
    ctypedef struct sockaddr "struct sockaddr":
        uint16_t sa_family
    ctypedef struct sockaddr_storage "struct sockaddr_storage":
        pass
    const int AF_INET
    const int AF_INET6
    const int SOCK_NONBLOCK
    const int SOCK_CLOEXEC
    const int MSG_NOSIGNAL
    const int SHUT_WR
    int accept4(int fd, sockaddr *name, socklen_t *length, int flags)
    int getpeername(int fd, sockaddr *name, socklen_t *length)
    Py_ssize_t recv(int fd, void *buffer, size_t length, int flags)
    Py_ssize_t send(int fd, const void *buffer, size_t length, int flags)
    int shutdown(int fd, int how)

cdef extern from "netinet/in.h":
    ctypedef struct sockaddr_in "struct sockaddr_in":
        uint16_t sin_port
    ctypedef struct sockaddr_in6 "struct sockaddr_in6":
        uint16_t sin6_port
    uint16_t ntohs(uint16_t value)

cdef extern from "netdb.h":
    const int NI_NUMERICHOST
    int getnameinfo(const sockaddr *name, socklen_t length, char *host, socklen_t host_length, char *service,
                    socklen_t service_length, int flags)

cdef extern from "unistd.h":
    int close(int fd)
