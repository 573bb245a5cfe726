import { run } from './harness.mjs'
import './sandbox.mjs'
import './commands.mjs'
import './files.mjs'
import './pty.mjs'
import './ports.mjs'
import './states.mjs'
import './templates.mjs'
import './policy.mjs'
import './volumes.mjs'
import './git.mjs'

await run()
