import { run } from './harness.mjs'
import './sandbox.mjs'
import './commands.mjs'
import './files.mjs'
import './pty.mjs'

await run()
