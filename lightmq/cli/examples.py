"""Examples of every command, shown below its help; a test gives each to the parser.

Invariant: every command, and every command of a command, has one that works as it stands. No loop.
"""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "up": (
        "lightmq up",
        "lightmq up --data /var/lib/lightmq --mqtt-port 1884 --set broker.store.flush=async",
    ),
    "broker": ("lightmq broker --data /var/lib/lightmq/broker --controllers controller-1:9876,controller-2:9876",),
    "controller": ("lightmq controller --data /var/lib/lightmq/controller --config lightmq.toml",),
    "proxy": (
        "lightmq proxy --controllers controller-1:9876,controller-2:9876 --proxies 2",
        "lightmq proxy --broker 127.0.0.1:10911 --password-file passwords --acl-file access.acl",
    ),
    "grpc-proxy": ("lightmq grpc-proxy --controllers controller-1:9876 --grpc-port 8081",),
    "bridge": ("lightmq bridge --config bridge.toml",),
    "pub": (
        "lightmq pub -t plant/7/temp -m '{\"celsius\": 21.5}'",
        "lightmq pub -t plant/7/state -m running --retain --qos 2",
        "seq 100 | lightmq pub -t plant/7/count --stdin",
        "lightmq pub -V 5 -t plant/7/temp -m 21.5 --property unit=celsius --expiry 1h",
    ),
    "sub": (
        "lightmq sub -t 'plant/#' --verbose",
        "lightmq sub -t 'plant/+/temp' --count 10 --json",
        "lightmq sub -t 'plant/#' --client-id dashboard --persistent",
    ),
    "tail": (
        "lightmq tail 'plant/+/temp' --follow",
        "lightmq tail plant/7/temp --since 10m --json",
        "lightmq tail orders --topic --last 5",
    ),
    "query": (
        "lightmq query --topic orders --key A-17",
        "lightmq query --topic orders --key A-17 --since yesterday --until 1h",
    ),
    "topics": (
        "lightmq topics",
        "lightmq topics pla --json",
        "lightmq topics create orders --queues 8 --retention 7d --retention-size 20GB",
        "lightmq topics update orders --retention 12h",
        "lightmq topics delete orders --yes",
    ),
    "lag": ("lightmq lag", "lightmq lag billing --json"),
    "sessions": ("lightmq sessions", "lightmq sessions show dashboard", "lightmq sessions end dashboard"),
    "clients": (
        "lightmq clients",
        "lightmq clients press- --address 10.0.",
        "lightmq clients --sort rate-in --count 5",
        "lightmq clients kick press-7 --end-session",
    ),
    "retained": ("lightmq retained 'plant/#' --contains temp", "lightmq retained clear plant/7/state"),
    "groups": (
        "lightmq groups",
        "lightmq groups lag billing",
        "lightmq groups reset billing orders --to 2h",
        "lightmq groups reset billing orders --to 'yesterday 08:00'",
        "lightmq groups skip billing orders",
    ),
    "dead-letters": ("lightmq dead-letters billing", "lightmq dead-letters resend billing broker-a/0/17"),
    "spark": ("lightmq spark", "lightmq spark --json"),
    "trace": ("lightmq trace plant/7/temp 0", "lightmq trace 7F00000100002A9F0000000000000B40"),
    "timers": (
        "lightmq timers",
        "lightmq timers --count 10",
        "lightmq timers HANDLE --delay 30m",
        "lightmq timers HANDLE --recall",
    ),
    "bench": (
        "lightmq bench mqtt",
        "lightmq bench mqtt --publishers 10 --subscribers 2 --rate 2000 --duration 10s",
        "lightmq bench rocketmq --rate 0 --size 1kB",
    ),
    "top": ("lightmq top", "lightmq top --count 1 --json"),
    "demo": ("lightmq demo", "lightmq demo --seconds 60"),
    "size": (
        "lightmq size --devices 10000 --rate 1 --days 7 --tls",
        "lightmq size --devices 500 --total-rate 2000 --payload 300 --subscribers 3 --replicas 2",
    ),
    "doctor": ("lightmq doctor", "lightmq doctor --data /var/lib/lightmq --server controller-1:9876"),
    "health": ("lightmq health && echo well", "lightmq health --json"),
    "audit": ("lightmq audit --since 24h", "lightmq audit --since yesterday --until today --json"),
    "cluster": (
        "lightmq cluster status",
        "lightmq cluster members broker-a",
        "lightmq cluster epochs broker-a",
        "lightmq cluster elect broker-a",
        "lightmq cluster transfer broker-a 2",
        "lightmq cluster remove broker-a 3",
        "lightmq cluster forget broker-b --yes",
        "lightmq cluster mqtt",
        "lightmq cluster controllers list",
        "lightmq cluster controllers add n4@10.0.0.8:9876@9877",
        "lightmq cluster controllers remove n4",
        "lightmq cluster controllers replace n3",
        "lightmq cluster controllers replace n3 n4@10.0.0.8:9876@9877",
    ),
    "migrate": (
        "lightmq migrate rocketmq --from old:9876",
        "lightmq migrate rocketmq --from old:9876 --follow --topic 'orders*'",
        "lightmq migrate rocketmq status --from old:9876",
        "lightmq migrate rocketmq switch --from old:9876",
    ),
    "acl": (
        "lightmq acl check access.acl",
        "lightmq acl explain --file access.acl --user anna --client press-7 --topic plant/7/temp",
        "lightmq acl rules --count 500",
        "lightmq acl test --user anna --client press-7 --action subscribe --topic 'plant/#'",
    ),
    "passwd": ("lightmq passwd passwords anna", "lightmq passwd passwords anna --delete"),
    "certs": (
        "lightmq certs certificates --name broker-a --name 10.0.0.7",
        "lightmq certs certificates --name 'controller-{0..2}'",
    ),
    "keys": ("lightmq keys keys --name broker-a --name proxies", "lightmq keys keys --access-list access.acl"),
    "store": (
        "lightmq store verify /var/lib/lightmq",
        "lightmq store dump /var/lib/lightmq --limit 10",
        "lightmq store stat /var/lib/lightmq --json",
        "lightmq store rebuild-index /var/lib/lightmq --progress",
    ),
    "profile": (
        "lightmq profile add plant --server controller-1:9876,controller-2:9876 --mqtt mqtt.plant:8883 --mqtt-tls",
        "lightmq profile add office --server office:9876 --access-key-file reader.key",
        "lightmq profile use plant",
        "lightmq profile list",
        "lightmq profile remove office",
    ),
    "completion": (
        "lightmq completion bash > ~/.local/share/bash-completion/completions/lightmq",
        "lightmq completion zsh > ~/.zfunc/_lightmq",
        "lightmq completion fish > ~/.config/fish/completions/lightmq.fish",
    ),
    "console": ("lightmq console token", "lightmq console token --renew --read-only"),
    "config": ("lightmq config show --origin --changed", "lightmq config explain broker.store.flush"),
}
"""Command -> lines for a shell."""


def epilogue(command: str) -> str:
    """What stands below the help of a command."""
    return "Examples:\n" + "".join(f"\n    {line}\n" for line in EXAMPLES[command])
