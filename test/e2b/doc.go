// Package e2b runs programs that use E2B's official SDKs with the real binary
// and the real engine. npm and pip install the SDKs into a cache, so the tests
// have a build tag; see `make e2b`.
package e2b
