// Package mcp runs the official conformance runner of the Model Context
// Protocol with the real binary. npm installs the runner into a cache, so the
// test has a build tag; see `make mcp`.
package mcp
