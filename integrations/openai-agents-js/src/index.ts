/** Atoll as a sandbox provider of the OpenAI Agents SDK. */
export { AtollSandboxClient } from './client.js'
export type { AtollSandboxClientOptions, AtollSandboxSessionState } from './options.js'
export { AtollSandboxSession } from './session.js'
