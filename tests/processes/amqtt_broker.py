"""amqtt's broker as a process: an MQTT 3.1.1 peer that shares no code with ours. `python amqtt_broker.py PORT`."""

from __future__ import annotations

import asyncio
import sys

from amqtt.broker import Broker


async def main(port: int) -> None:
    """Serve every client on loopback until killed."""
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    sys.stdout.write(f'{{"mqtt": {port}}}\n')
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
