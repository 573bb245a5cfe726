package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// ofSession is the value of Sandbox.metered for sandboxes whose time is counted
// by the lease of a session.
const ofSession = -1

// runs reports whether the time of a sandbox in its state is counted: while it
// may use processors or memory, which a lost sandbox may.
func (sb *Sandbox) runs() bool { return sb.State != sandbox.Creating && sb.holds() }

// meter decides since when the time of a sandbox is counted after a change. It
// returns the time that ends with the change, which is counted with the labels
// from before it; zero if none ends.
func meter(old, b *Sandbox, sameLabels bool) (began, ended int64) {
	b.metered = old.metered
	now := nanos(b.Updated)
	switch {
	case old.metered == ofSession:
		return 0, 0
	case old.metered == 0:
		if b.runs() {
			b.metered = now
		}
		return 0, 0
	case b.runs() && sameLabels && old.Provider == b.Provider:
		return 0, 0
	}
	b.metered = 0
	if b.runs() {
		b.metered = max(now, old.metered) // the clock may have gone back
	}
	return old.metered, now
}

// span is time within whole hours, as stored: since and until are full hours. A
// span of more than one hour is full, or a sum of full ones.
type span struct{ since, until, time int64 }

// spans splits a run into its first hour, the full hours after it, and its last.
func spans(began, ended int64) (out []span) {
	const hour = int64(time.Hour)
	for began < ended {
		since := began / hour * hour
		until := since + hour
		if began == since && ended >= until {
			until = ended / hour * hour
		}
		end := min(until, ended)
		out = append(out, span{since, until, end - began})
		began = end
	}
	return out
}

// within returns the part of a span between two full hours.
func (s span) within(from, to int64) int64 {
	whole, part := s.until-s.since, min(s.until, to)-max(s.since, from)
	if part <= 0 || whole <= 0 {
		return 0
	}
	const hour = int64(time.Hour)
	return s.time / (whole / hour) * (part / hour) // exact, because each of several hours is full
}

// addTime counts a run of a sandbox with its labels.
func (bs Sandboxes) addTime(ctx context.Context, b *Sandbox, began, ended int64) error {
	if began >= ended {
		return nil
	}
	labels, err := marshalLabels(b.Labels)
	if err != nil {
		return err
	}
	for _, s := range spans(began, ended) {
		if _, err := bs.tx.exec(ctx, `INSERT INTO sandbox_time (tenant, provider, labels_json, since, until, time) VALUES ($1, $2, $3, $4, $5, $6)
			ON CONFLICT (tenant, until, since, provider, labels_json) DO UPDATE SET time = sandbox_time.time + excluded.time`,
			b.Tenant, b.Provider, labels, s.since, s.until, s.time); err != nil {
			return err
		}
	}
	return nil
}

// Times lists how long a tenant's sandboxes without a session ran in the full
// hours that contain from (inclusive) to (exclusive), including those that run
// now. The time in which a sandbox was created, stopped or paused on disk does
// not count. Only Provider, Labels and Warm are set.
func (bs Sandboxes) Times(ctx context.Context, tenant string, from, to time.Time) ([]WarmTime, error) {
	const hour = int64(time.Hour)
	first, last := nanos(from)/hour*hour, (nanos(to)+hour-1)/hour*hour
	scan := func(row scanner) (u WarmTime, err error) {
		var labels string
		var s span
		if err := row.Scan(&u.Provider, &labels, &s.since, &s.until, &s.time); err != nil {
			return u, err
		}
		u.Warm = time.Duration(s.within(first, last))
		return u, json.Unmarshal([]byte(labels), &u.Labels)
	}
	rows, err := bs.tx.query(ctx, `SELECT provider, labels_json, since, until, time FROM sandbox_time
		WHERE tenant = $1 AND until > $2 AND since < $3`, tenant, first, last)
	out, err := collect(rows, err, scan)
	if err != nil {
		return nil, err
	}
	now := nanos(bs.tx.Now())
	rows, err = bs.tx.query(ctx, "SELECT provider, labels_json, metered FROM sandboxes WHERE tenant = $1 AND metered > 0 AND state <> 'gone'", tenant)
	running, err := collect(rows, err, func(row scanner) (u WarmTime, err error) {
		var labels string
		var began int64
		if err := row.Scan(&u.Provider, &labels, &began); err != nil {
			return u, err
		}
		for _, s := range spans(began, now) {
			u.Warm += time.Duration(s.within(first, last))
		}
		return u, json.Unmarshal([]byte(labels), &u.Labels)
	})
	return append(out, running...), err
}
