import asyncio

import cases  # noqa: F401  registers them
import control  # noqa: F401
from harness import main

asyncio.run(main())
