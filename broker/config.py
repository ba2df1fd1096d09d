"""Every option of a broker, declared once: name, default, rule, and when to change it.

`runtime.config.load` fills the table from defaults, a TOML file, the environment and flags; the reference page
is made from the strings below. Values only, no behaviour. `store` is handed to the store as it stands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from broker.store.settings import StoreSettings
from runtime.config import setting
from runtime.tls_config import DialTlsConfig, ListenTlsConfig


@dataclass(frozen=True, kw_only=True)
class LimitsConfig:
    """Upper bounds; each names what happens when it is reached."""

    frame_size_bytes_max: int = setting(16_777_216, minimum=65_536)
    """Largest remoting frame; a peer that announces more is disconnected. Must exceed the largest message."""
    connection_output_bytes_max: int = setting(33_554_432, minimum=65_536)
    """Output waiting on one connection above which its requests are no longer read."""
    connections_max: int = setting(10_000, minimum=1)
    """Connections at the remoting port; further ones are closed at once."""
    read_bytes_max: int = setting(268_435_456, minimum=16_777_216)
    """Memory for requests that have begun to arrive, of all connections; while it is spent, further large ones are not
    read on."""
    unproven_bytes_max: int = setting(67_108_864, minimum=65_536)
    """The same for peers that have proved no key yet, and must; at this limit their connections are closed."""
    unproven_address_bytes_max: int = setting(33_554_432, minimum=65_536)
    """Part of it that one address may have."""
    unproven_connection_bytes_max: int = setting(65_536, minimum=1_024)
    """Part of it that one connection may have; a request in the name of a known key may be larger. Raise it where
    clients without a key send larger messages under an access list."""
    unproven_idle_ms: int = setting(120_000, minimum=1_000)
    """Idle timeout of connections that have to authenticate and have not; 10 s for those that have sent no request at
    all. Authenticated connections may stay idle."""
    frame_deadline_ms: int = setting(60_000, minimum=1_000)
    """Longest time for one request to arrive (10 s without a proved key); then its connection is closed."""
    frame_bytes_per_s_min: int = setting(16_384, minimum=0)
    """Least speed of a request that arrives, counted after five seconds; slower connections are closed."""
    message_size_bytes_max: int = setting(4_194_304, minimum=1_024)
    """Largest message body; larger ones are refused with MESSAGE_ILLEGAL."""
    properties_bytes_max: int = setting(32_767, minimum=1_024, maximum=32_767)
    """Most bytes of all properties of a message (RocketMQ's own limit); more are refused with MESSAGE_ILLEGAL."""
    pull_bytes_max: int = setting(8_388_608, minimum=65_536)
    """Most bytes of records in one answer to a pull of any kind; what does not fit comes with the next pull."""
    topics_max: int = setting(100_000, minimum=1, live=True)
    """Parent topics; the creation of one more is refused."""
    topics_per_user_max: int = setting(50_000, minimum=0, live=True)
    """Parent topics that one user has made by use, of `topics_max`: by the first message to a topic or by a consumer
    group, which has a retry topic. One more is refused with FLOW_CONTROL (MQTT 5: 0x97). Clients without a user count
    together; topics that an administrator made or changed count for nobody. 0 = no limit."""
    mqtt_topics_per_parent_max: int = setting(1_000_000, minimum=0, live=True)
    """MQTT topics of one parent topic (those with the same first level); a message that would make one more is refused
    with FLOW_CONTROL (MQTT 5: 0x97), those to existing topics go on. 0 = no limit."""
    mqtt_topics_per_user_max: int = setting(1_000_000, minimum=0, live=True)
    """MQTT topics that one user has made by publishing or subscribing to them, and that have not ended yet; one more is
    refused with FLOW_CONTROL (MQTT 5: 0x97). Clients without a user count together. 0 = no limit."""
    cached_topics_max: int = setting(200_000, minimum=16)
    """MQTT topics whose queues are cached; the cache is cleared when it is full."""
    filters_max: int = setting(100_000, minimum=1)
    """Wildcard filters with a queue; subscribing to one more is refused with 0x97 (MQTT 3.1.1: 0x80)."""
    sessions_max: int = setting(1_000_000, minimum=1)
    """Sessions, connected or not; one more is refused."""
    filters_per_user_max: int = setting(50_000, minimum=1)
    """The same for those that clients of one user made, all clients without a user together: one user cannot take them
    all, or have every message entered in too many queues."""
    filters_per_session_max: int = setting(2_000, minimum=1)
    """Wildcard filters of one session; subscribing to one more is refused with 0x97 (MQTT 3.1.1: 0x80). A message is
    entered in a queue for each that matches its topic."""
    subscriptions_per_session_max: int = setting(10_000, minimum=1)
    """Filters of one session, with and without wildcards; one more is refused with 0x97 (MQTT 3.1.1: 0x80), and so is
    one with which they had more than a mebibyte. Each costs the proxy about a kilobyte while its client is
    connected."""
    parked_requests_max: int = setting(20_000, minimum=1)
    """Long polls that wait at the same time; one more is answered at once, as if its time were over."""
    long_poll_ms_max: int = setting(60_000, minimum=0)
    """Longest wait of a long poll; a request for a longer one gets this."""
    sinks_max: int = setting(10_000, minimum=1, live=True)
    """Exactly-once sinks whose last committed batch is remembered: one entry for each, until the sink is ended. A
    further one is refused with FLOW_CONTROL; those there are go on."""
    stage_attempts_max: int = setting(10_000, minimum=1)
    """Staged attempts of sinks that are neither committed nor expired; one more is refused with SYSTEM_BUSY."""
    retained_messages_max: int = setting(0, minimum=0)
    """Retained messages of all topics; one for a further topic is refused with FLOW_CONTROL (MQTT 5: 0x97). 0 = no
    limit: they cost disk and some 200 bytes of memory each."""
    retained_bytes_max: int = setting(0, minimum=0)
    """Payload bytes of all retained messages; a message beyond is refused with FLOW_CONTROL (MQTT 5: 0x97). 0 = no
    limit."""
    delayed_messages_max: int = setting(1_000_000, minimum=1, live=True)
    """Messages that wait for their time; one more is refused with MESSAGE_ILLEGAL."""
    delayed_per_second_max: int = setting(0, minimum=0, live=True)
    """Messages that may be due in the same second; one more is refused with FLOW_CONTROL (MQTT 5: 0x97). 0 = no limit:
    what one second cannot deliver is delivered late."""
    transactions_max: int = setting(100_000, minimum=1, live=True)
    """Transactions that are neither committed nor rolled back; one more is refused with SYSTEM_BUSY."""
    pop_in_flight_max: int = setting(100_000, minimum=1, live=True)
    """Messages of one queue that a consumer group may have by POP at the same time; with more the queue gives it none,
    until some are acknowledged or their time is over."""
    lite_topics_max: int = setting(1_000_000, minimum=1)
    """Lite topics of one parent topic; a message that would make one more is refused with LMQ_QUOTA_EXCEEDED (2017)."""
    lite_subscriptions_max: int = setting(1_000_000, minimum=1)
    """Subscriptions of all clients to lite topics; one more is refused with LITE_SUBSCRIPTION_QUOTA_EXCEEDED (2018)."""
    access_users_max: int = setting(10_000, minimum=1, live=True)
    """Users made by requests; one more is refused with SYSTEM_BUSY."""
    commit_group_bytes_max: int = setting(8_388_608, minimum=65_536)
    """Largest atomic group of a sink's commit; a larger commit becomes visible in several groups."""


@dataclass(frozen=True, kw_only=True)
class ReplicationConfig:
    """One broker as a member of a group with one log, whose master the controllers, or the members, choose."""

    enabled: bool = False
    """Be a member of the group named by `cluster_name` and `broker_name`, which needs controllers unless `mode` is
    "dledger". Without it the broker is alone and always the master."""
    mode: str = setting("controller", choices=("controller", "dledger"))
    """Who chooses the master. `controller`: the controllers do, and keep the set of replicas in sync. `dledger`: the
    members elect it, as in RocketMQ's DLedger mode; a message is acknowledged once more than half of `members` have it
    on their disks. `acknowledge` and `in_sync_min` then mean nothing. A group never changes its mode."""
    members: tuple[str, ...] = setting((), form="name@host:port")
    """With mode = "dledger": all members as name@host:port, where clients reach them, the same list on each: 3 survive
    the loss of one, 5 of two."""
    node_id: str = ""
    """With mode = "dledger": this broker's name among `members`; empty: the one with this broker's address."""
    election_heartbeat_ms: int = setting(100, minimum=20)
    """With mode = "dledger": interval of the master's heartbeats to the other members."""
    election_silence_ms: int = setting(1_000, minimum=200)
    """With mode = "dledger": silence of the master after which another member stands for election, and after which a
    master that no majority answers resigns. A broken connection is noticed immediately."""
    election_interval_ms: int = setting(150, minimum=20)
    """With mode = "dledger": shortest pause before a member stands for election; it is random, at most twice this."""
    port: int = setting(10_912, minimum=0, maximum=65_535)
    """Port at which the master sends its log to the replicas; 0 takes any free one. Uses TLS as set in `broker.tls`,
    and replicas connect as `broker.dial_tls` says."""
    advertised_address: str = setting("", form="host:port")
    """host:port that replicas connect to; empty means `advertised_host`, or the listening address, and the
    port."""
    acknowledge: str = setting("all", choices=("async", "count", "all"))
    """When a message is acknowledged: once `all` brokers in sync have it on their disks (the loss of a master loses
    nothing acknowledged), once `count` brokers have it (`in_sync_replicas`; what only lost brokers had is lost), or
    once the master has it (`async`; what it had not replicated is lost with it)."""
    in_sync_replicas: int = setting(2, minimum=1, maximum=64)
    """With acknowledge = "count": how many brokers have to have a message, the master among them."""
    in_sync_min: int = setting(2, minimum=1, maximum=64)
    """Fewest brokers in sync, the master among them, with which messages are accepted; with fewer they are refused with
    SYSTEM_BUSY. With 2 every acknowledged message is on two disks at least; a group of two then refuses messages while
    one of them is away, which 1 avoids."""
    unconfirmed_bytes_max: int = setting(64 * 1024 * 1024, minimum=65_536)
    """Bytes of the master's log that may wait for its replicas; beyond it messages are refused with SYSTEM_BUSY, before
    anything of them is stored, until the replicas have caught up."""
    replica_reads: bool = True
    """While this broker is a replica, serve confirmed records to Spark jobs with `readFrom` = `replica` or `nearest`,
    and to RocketMQ's clients that pull from it. With false all read from the master."""
    acting_master: bool = False
    """While the group has no master that can be reached, and none can be elected: stand in for it, read only, if this
    is the replica with the smallest id that is alive (RocketMQ's slave acting master; docs/howto/acting-master.md). A
    new master grants no free lock and gives nothing by POP in its first three seconds then, to learn what the replica
    gave and took. Set it alike on all brokers of the group."""
    lock_in_strict_mode: bool = False
    """With acting_master: while a replica stands in, it grants and renews locks of queues only if more than half of the
    group's configured brokers agree (RocketMQ's lockInStrictMode): order goes before availability. A group with mode =
    "dledger" has no such majority then, and nobody is granted a lock. Set it alike on all brokers of the group."""
    group_size: int = setting(0, minimum=0, maximum=1_000)
    """How many brokers the group has, for lock_in_strict_mode with mode = "controller"; elsewhere 0."""
    escape: bool = False
    """With acting_master: while a replica stands in, it sends delayed messages of RocketMQ's producers that are due and
    messages of POP whose time is over, to another group's master (RocketMQ's enableRemoteEscape). A new master delivers
    no delayed message in its first three seconds then, to learn what was sent. Set it alike on all brokers of the
    group."""
    learner: bool = False
    """Take the log over without ever being in sync or master: for a copy far away."""
    priority: int = setting(2_147_483_647, minimum=0, maximum=2_147_483_647)
    """Among equals in an election the lowest one becomes master."""
    heartbeat_interval_ms: int = setting(500, minimum=50)
    """Interval of heartbeats to the controllers."""
    heartbeat_timeout_ms: int = setting(2_000, minimum=100)
    """Silence after which the controllers count this broker as dead. A broken connection is noticed immediately."""
    request_timeout_ms: int = setting(1_000, minimum=100)
    """How long a controller may take to answer before another one is asked."""
    poll_interval_ms: int = setting(1_000, minimum=100)
    """How often the controllers are asked who is master, in case their notification was lost."""
    check_interval_ms: int = setting(500, minimum=50)
    """How often the master checks which replicas are in sync."""
    lag_limit_ms: int = setting(5_000, minimum=500)
    """A replica that has not caught up for so long is no longer in sync."""
    absence_limit_ms: int = setting(300, minimum=50)
    """A replica without a connection for so long is no longer in sync; nothing is acknowledged until then."""
    stream_heartbeat_ms: int = setting(500, minimum=50)
    """Longest silence of the master towards a replica."""
    stream_silence_limit_ms: int = setting(3_000, minimum=200)
    """Silence after which either side of the stream ends the connection."""


@dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """What one broker process is given: its names, its ports, and a table for each of its parts."""

    cluster_name: str = "DefaultCluster"
    """Cluster this broker registers itself under; RocketMQ's tools show it."""
    broker_name: str = "broker-a"
    """Name of the broker group; unique in the cluster, part of Spark's offsets: never change it for existing data."""
    host: str = "127.0.0.1"
    """Address to listen on. Requests from other machines additionally need an access key."""
    port: int = setting(10_911, minimum=0, maximum=65_535)
    """Remoting port; 0 takes any free one."""
    vip_port: int = setting(-1, minimum=-1, maximum=65_535)
    """Second port for the same requests, under the same limits: RocketMQ clients before 4.5 send to the port two below
    the one of a broker's address. -1 opens that one, if the port is set (not 0) and the one below is free; 0 opens
    none; any other number is for networks that map ports. When it cannot be opened, the log says so and the broker
    runs without it. Brokers of one host whose ports are two apart collide: see docs/howto/rocketmq.md."""
    advertised_host: str = ""
    """Host that clients connect to; empty means the listening address (127.0.0.1 if that is 0.0.0.0)."""
    admin_host: str = "127.0.0.1"
    """Address of the administration port."""
    admin_hosts: tuple[str, ...] = ()
    """Further host names under which the administration port answers, beside `localhost` and IP addresses."""
    admin_port: int = setting(8_081, minimum=0, maximum=65_535)
    """Administration port: console, /metrics, /livez, /readyz; 0 takes any free one."""
    controllers: tuple[str, ...] = setting(("127.0.0.1:9876",), form="host:port")
    """Controllers (they are the name servers too) to register with; empty for a broker that is found by address."""
    access_key_file: Path | None = None
    """One line `key:secret`, readable by its owner alone: signs requests to controllers, which those of other machines
    require (`access_keys` there)."""
    data_directory: Path = Path("lightmq-data")
    """Where the log lies; one running broker per directory."""
    range_readers: int = setting(0, minimum=0, maximum=64)
    """Processes beside the broker that serve ranges of records to Spark; 0: the broker serves them itself. One per core
    that Spark's reads may take from this machine."""
    range_reader_port: int = setting(0, minimum=0, maximum=65_535)
    """Port the reader processes share; 0 takes any free one. Set it where a firewall stands before the broker."""
    access_keys: tuple[str, ...] = ()
    """`key:secret` pairs that may send requests from other machines, signed as RocketMQ's clients do."""
    access_list: Path | None = None
    """File of rules: which access key may read and write what (docs/howto/access.md). It is read again when it changes.
    With it what no rule allows is denied, requests without a key have the rules of `anonymous`, and a key is checked
    on this machine too. Without it every client that may send requests may do everything."""
    partly_readable_filters: str = setting("thin", choices=("thin", "refuse"))
    """What becomes of a Spark job whose filter covers topics that its key may not read: it gets the others (`thin`), or
    is refused."""
    bound_signatures_only: bool = False
    """Refuse signatures that could be copied and sent again, as those of RocketMQ's own clients can; those of LightMQ's
    clients are valid once, on their connection."""
    open_to_all: bool = False
    """Serve other machines without a signature. Only for closed networks."""
    default_queue_count: int = setting(4, minimum=1, maximum=1_024, live=True)
    """Queues of a topic that is created by its first message."""
    template_queue_count: int = setting(8, minimum=1, maximum=1_024, live=True)
    """Most queues that a RocketMQ client gets when its first message creates a topic (`defaultTopicQueueNums`)."""
    auto_create_topics: bool = setting(True, live=True)
    """Create a topic when the first message for it arrives. With false, topics are made by an administrator."""
    register_interval_ms: int = setting(30_000, minimum=100)
    """How often the broker checks that the controllers have its current topics, and registers them again where they
    differ; a change is registered at once."""
    registration_wait_ms: int = setting(1_000, minimum=0, maximum=60_000)
    """Longest time that the answer to a request that created a topic waits until every reachable controller has the
    topic's route. A controller that takes longer is not waited for again until it answers; 0 waits for none."""
    heartbeat_interval_ms: int = setting(1_000, minimum=100)
    """Interval of heartbeats to the controllers."""
    session_expiry_s: int = setting(7 * 86_400, minimum=1, maximum=0xFFFF_FFFF)
    """Longest time a session is kept without its client. One that asks for longer, or that sets clean=false, gets this,
    and learns so with MQTT 5. 4294967295 keeps sessions, and what waits for them, until their clients come back."""
    proxy_grace_ms: int = setting(5_000, minimum=0)
    """How long the wills of a proxy's clients wait for it after its connection was lost, or after the broker's start;
    longer than a proxy needs to come back."""
    will_verdict_ms: int = setting(5_000, minimum=100)
    """How long a proxy may take to decide whether a will that is due may be published; another one is asked then."""
    filter_expiry_s: int = setting(600, minimum=1)
    """How long a wildcard queue outlives its last subscription where that was lost with its proxy or at a restart;
    longer than a proxy needs to come back. The queue of a filter that was given up, or whose session has ended, is
    deleted at once."""
    unused_queue_expiry_s: int = setting(600, minimum=0, live=True)
    """How long the light queue of an MQTT topic (or one that a RocketMQ sender names) is kept once the log has no
    message of it, nobody is subscribed and nothing is retained; longer than a proxy needs to come back. A topic that
    comes back begins a new queue at offset 0. The time begins again with a start of the broker. 0 keeps all."""
    unused_offset_expiry_s: int = setting(7 * 86_400, minimum=0, live=True)
    """How long such a queue is kept further because a consumer group has committed an offset there; then the offset is
    removed with it."""
    stage_expiry_s: int = setting(86_400, minimum=60)
    """How long a sink's staged but uncommitted rows are kept; longer than a Spark job may stand still."""
    delay_s_max: int = setting(3 * 86_400, minimum=1, maximum=400 * 86_400, live=True)
    """Longest delay a message may ask for; a longer one is refused with MESSAGE_ILLEGAL."""
    delay_precision_ms: int = setting(100, minimum=1, maximum=1_000)
    """Least time between two deliveries of delayed messages: one that is due alone is delivered at its time, those due
    shortly after it together and at most so much late. A larger value makes fewer appends."""
    transaction_check_after_ms: int = setting(6_000, minimum=100, live=True)
    """How long a transaction may stay open before its producer group is asked for the outcome."""
    transaction_check_interval_ms: int = setting(30_000, minimum=100, live=True)
    """How long after a question about an open transaction the next one follows."""
    transaction_checks_max: int = setting(15, minimum=1, live=True)
    """Questions about one transaction; then its message goes to the topic TRANS_CHECK_MAX_TIME_TOPIC."""
    transaction_age_s_max: int = setting(86_400, minimum=1, live=True)
    """How long a transaction may stay open when none of its producers is connected; then its message goes there."""
    client_expiry_s: int = setting(120, minimum=5, live=True)
    """How long a RocketMQ client counts as present after its last heartbeat (clients send one each 30 s)."""
    shared_commit_interval_ms: int = setting(200, minimum=1, live=True)
    """How often what members of shared subscriptions have acknowledged is written. After a crash at most this much of
    it is delivered again."""
    shared_wait_ms: int = setting(2_000, minimum=0, live=True)
    """How long after a restart of the broker a shared subscription waits for the members that have its messages, before
    it hands those to others; longer than a proxy needs to come back."""
    lite_client_expiry_s: int = setting(180, minimum=1)
    """A client of lite topics that neither pops nor repeats its subscriptions for so long loses them."""
    audit_retention_ms: int = setting(7_776_000_000, minimum=0)
    """How long the record of administrative acts is kept, also after the log around it has expired; the newest 10,000
    acts of an expired log at most. 0: no limit of age."""
    maintain_interval_ms: int = setting(1_000, minimum=50)
    """How often retention, expiry and snapshots are checked."""
    tls: ListenTlsConfig = field(default_factory=ListenTlsConfig)
    dial_tls: DialTlsConfig = field(default_factory=DialTlsConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)
    store: StoreSettings = field(default_factory=StoreSettings)
