# Store messages made without calling their constructor: every slot is filled here.
cdef extern from *:
    """
    static inline PyObject *bare_instance(PyObject *cls) {
        return ((PyTypeObject *)cls)->tp_alloc((PyTypeObject *)cls, 0);
    }
    static inline void fill_slot(PyObject *owner, Py_ssize_t place, PyObject *value) {
        PyObject **at = (PyObject **)((char *)owner + place);
        Py_INCREF(value);
        Py_XSETREF(*at, value);
    }
    """
    object bare_instance(object cls)
    void fill_slot(object owner, Py_ssize_t place, object value)
