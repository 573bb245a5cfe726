// Package bounds has the limits of what a request may hold. They bound the
// memory that one request can use in the control plane and the gateway.
package bounds

import "time"

// Limits of a profile. They bound the memory that one request can use in the
// control plane and the gateway.
const (
	MaxRules      = 20_000
	MaxRuleHosts  = 256
	MaxSecretRefs = 64
	MaxEgress     = 1024
)

// MaxPorts is the maximum number of published ports of one sandbox.
const MaxPorts = 64

// Limits of the DNS and proxy settings of a profile.
const (
	MaxDNSServers      = 10
	MaxProxyCredential = 255 // bytes, as in RFC 1929
	MaxProxyCA         = 8192
)

// Limits of a Spec and a Command. They bound the memory that one request can
// use in the control plane.
const (
	MaxNameLen   = 63
	MaxLabels    = 64
	MaxLabelLen  = 256
	MaxEnv       = 4096
	MaxMounts    = 64
	MaxArgsBytes = 1 << 20 // all arguments of a command together
	MaxHold      = 24 * time.Hour
	MaxPathLen   = 4096
	MinMemory    = 32 << 20
	MinDisk      = 1 << 20
	MinPIDs      = 8
	MaxMemory    = 1 << 46 // 64 TiB; the sum over 100,000 sandboxes does not overflow
	MaxDisk      = 1 << 46
	MaxPIDs      = 1 << 22 // the limit of Linux
)
