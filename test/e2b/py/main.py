import asyncio

import cases  # noqa: F401  registers them
from harness import main

asyncio.run(main())
