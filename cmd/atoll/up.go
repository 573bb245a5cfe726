//go:build linux && !light

package main

import (
	"context"

	"github.com/atoll-run/atoll/internal/cli/cmd/operate"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/providerset"
)

// up starts a daemon that serves its socket.
func up(ctx context.Context, providers []providerset.Entry, o operate.UpOptions) (operate.Daemon, error) {
	if err := leaveNoCore(); err != nil {
		return nil, err
	}
	config, fleet, err := others(o)
	if err != nil {
		return nil, err
	}
	d, err := daemon.Start(ctx, daemon.Options{
		Machines: config, Fleet: fleet, StateDir: o.StateDir, Provider: o.Provider, Providers: providers, SharedProviders: o.Shared, Store: o.Store, Blobs: o.Blobs, ShareImages: o.ShareImages, ShareImagesKeep: o.ShareImagesKeep, Buckets: o.Buckets, Socket: true,
		PlainSnapshots: o.PlainSnapshots, SnapshotCache: o.SnapshotCache, StreamRate: o.StreamRate, SessionGrace: o.SessionGrace,
		Listen: o.Listen, TLS: o.TLS, Plain: o.Plain, Hosts: o.Hosts, Key: o.Key, Drain: o.Drain, Pool: o.Pool, Logger: o.Logger, E2B: daemon.E2B(o.E2B), Bridge: daemon.Bridge(o.Bridge), Egress: daemon.Egress(o.Egress), Policies: o.Policies,
		AuditKeep: o.AuditKeep, Telemetry: o.OTLP, Version: atollVersion(),
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}
