// Package e2b runs programs that use E2B's official SDKs against the real
// binary and the real engine. It needs npm and pip, which install the SDKs into
// a cache, and so its tests have a build tag of their own; see `make e2b`.
package e2b
