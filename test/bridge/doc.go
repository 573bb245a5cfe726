// Package bridge runs programs that use the CloudflareSandboxClient of OpenAI's
// Agents SDKs, unchanged, with the real binary and the real engine. npm and pip
// install the SDKs into a cache, so the tests have a build tag; see `make
// bridge`.
package bridge
