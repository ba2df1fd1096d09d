"""Every option of a controller, declared once: name, default, rule, and when to change it.

`runtime.config.load` fills the table from defaults, a TOML file, the environment and flags; the reference page
is made from the strings below. Values only, no behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from runtime.config import setting
from runtime.tls_config import DialTlsConfig, ListenTlsConfig


@dataclass(frozen=True, kw_only=True)
class ControllerConfig:
    """One controller, which is the name server too."""

    host: str = "127.0.0.1"
    """Address to listen on. Requests from other machines additionally need an access key."""
    port: int = setting(9_876, minimum=0, maximum=65_535)
    """Remoting port; 0 takes any free one."""
    admin_host: str = "127.0.0.1"
    """Address of the administration port."""
    admin_hosts: tuple[str, ...] = ()
    """Further host names under which the administration port answers, beside `localhost` and IP addresses."""
    admin_port: int = setting(8_080, minimum=0, maximum=65_535)
    """Administration port: console, /metrics, /livez, /readyz; 0 takes any free one."""
    data_directory: Path = Path("lightmq-data/controller")
    """Where metadata and journal lie; one running controller per directory."""
    access_keys: tuple[str, ...] = ()
    """`key:secret` pairs that may send requests from other machines, signed as RocketMQ's clients do."""
    access_list: Path | None = None
    """What each access key may ask for and change, in the format of the brokers' list; requests without a key have
    the rules of `anonymous`, on this machine too. Watched for changes. Brokers need `role broker NAME` in it, proxies
    `role proxy`."""
    access_key_file: Path | None = None
    """Key for pushing roles to brokers (one line `key:secret`); needs `role controller` where they have an
    access list."""
    bound_signatures_only: bool = False
    """Refuse signatures that could be copied and sent again, as those of RocketMQ's own clients can; those of LightMQ's
    clients are valid once, on their connection."""
    open_to_all: bool = False
    """Serve other machines without a signature. Only for closed networks."""
    node_id: str = "n1"
    """Name of this controller among `peers`: letters and digits; it must never change."""
    peers: tuple[str, ...] = ()
    """All controllers, this one included, as `n1@host:port@raftport`, the same list on each: 3 survive the loss of one,
    5 of two. Empty: this one decides alone."""
    raft_engine: str = setting("dledger", choices=("dledger", "pysyncobj"))
    """How several controllers agree, the same on each of them: `dledger` is LightMQ's own core; `pysyncobj` is the
    library that carried earlier releases. Both keep the same files: to change it, restart one controller after the
    other, as for an upgrade; until more than half have the same engine, the loss of one more halts decisions."""
    raft_host: str = ""
    """Address to listen on for the other controllers; empty: the host this controller has in `peers`."""
    raft_secret_file: Path | None = None
    """File with the secret by which controllers authenticate and encrypt their traffic; at least 16 characters, not
    accessible to other users. Required across machines; on one machine `raft.secret` beside the data directories is
    created and used."""
    raft_heartbeat_ms: int = setting(40, minimum=5, maximum=1_000)
    """Heartbeat interval of the leading controller."""
    raft_election_ms: int = setting(300, minimum=30, maximum=10_000)
    """Election timeout: silence of the leader after which another controller stands for election, randomized up to
    twice this value. Must exceed three heartbeats. Raise it where the network or the machines pause for longer."""
    raft_fallback_ms: int = setting(1_000, minimum=100)
    """A leading controller steps down after losing contact with the majority for this long."""
    propose_timeout_ms: int = setting(3_000, minimum=100)
    """Longest wait for the controllers to agree on one decision; after that its outcome is queried."""
    snapshot_entries: int = setting(5_000, minimum=2)
    """Decisions after which a snapshot is written and the journal truncated."""
    replica_timeout_ms: int = setting(2_000, minimum=100)
    """Silence after which a broker in controller mode counts as dead and its group elects another master. Must exceed
    three of the brokers' heartbeats."""
    election_scan_ms: int = setting(200, minimum=10)
    """How often to check for silent brokers and groups without a master."""
    unclean_election: bool = False
    """Let a broker that is not in sync become master when no broker in sync is alive. Loses acknowledged messages."""
    tls: ListenTlsConfig = field(default_factory=ListenTlsConfig)
    dial_tls: DialTlsConfig = field(default_factory=DialTlsConfig)
    broker_timeout_ms: int = setting(120_000, minimum=1_000)
    """Silence after which a broker that announces no timeout of its own is removed from the routes; must exceed its
    registration interval."""
    broker_lost_grace_ms: int = setting(5_000, minimum=0)
    """How long a broker whose connection broke may take to reconnect before it is removed from the routes."""
    liveness_scan_ms: int = setting(1_000, minimum=50)
    """How often to check for silent brokers; adds to the time a dead broker stays in the routes."""
    template_queue_count: int = setting(4, minimum=0, maximum=1_024)
    """Queues in the route of TBW102, from which clients learn where a topic that does not exist yet may be created,
    when no broker registers that topic itself; 0 gives no such route."""
    persist_pause_ms: int = setting(200, minimum=0)
    """Minimum interval between two writes of the metadata file; changes in between are written together."""
    audit_retention_ms: int = setting(7_776_000_000, minimum=0)
    """How long this controller keeps the record of what operators did at it, the newest 10,000 acts at most. 0: no
    limit of age."""
    frame_size_bytes_max: int = setting(16_777_216, minimum=65_536)
    """Largest remoting frame; a peer that announces more is disconnected. Must hold a broker's whole topic table."""
    connection_output_bytes_max: int = setting(8_388_608, minimum=65_536)
    """Output waiting on one connection above which its requests are no longer read."""
    connections_max: int = setting(10_000, minimum=1)
    """Connections at the remoting port; further ones are closed at once."""
    brokers_max: int = setting(1_000, minimum=1)
    """Broker addresses that may be registered; one more is refused."""
    topics_max: int = setting(1_000_000, minimum=1)
    """Topics in the routes; a registration that would exceed them is refused."""
    key_values_max: int = setting(100_000, minimum=1)
    """Entries of the key-value table (codes 100-102, 219); one more is refused."""
