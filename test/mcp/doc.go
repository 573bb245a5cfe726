// Package mcp runs the official conformance runner of the Model Context
// Protocol against the real binary. It needs npm, which installs the runner into
// a cache, and so its test has a build tag of its own; see `make mcp`.
package mcp
