// Package bridge runs programs that use the CloudflareSandboxClient of OpenAI's
// Agents SDKs, unchanged, against the real binary and the real engine. It needs npm
// and pip, which install the SDKs into a cache, and so its tests have a build tag of
// their own; see `make bridge`.
package bridge
