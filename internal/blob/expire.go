package blob

import (
	"context"
	"errors"
	"strings"
	"time"
)

// clockKey is the key of a blob that Expire writes to learn the store's time.
const clockKey = "expired"

// Expire removes the blobs of a store that were written longer ago than keep, by
// the store's own clock. It returns their number. Several processes may do it at
// once. A blob that is written again while Expire runs may be removed all the same,
// so use it only for what can be made again. It continues after a failed removal.
func Expire(ctx context.Context, s Store, keep time.Duration) (removed int, err error) {
	if err := s.Put(ctx, clockKey, strings.NewReader("."), PutOptions{}); err != nil {
		return 0, err
	}
	now, err := s.Stat(ctx, clockKey)
	if err != nil {
		return 0, err
	}
	old := func(info Info) bool { return now.Modified.Sub(info.Modified) > keep }
	var failed []error
	for info, err := range s.List(ctx, "") {
		if err != nil {
			failed = append(failed, err)
			break
		}
		if info.Key == clockKey || !old(info) {
			continue
		}
		// A long list may be older than a renewal.
		if latest, err := s.Stat(ctx, info.Key); err != nil || !old(latest) {
			continue
		}
		if err := s.Delete(ctx, info.Key); err != nil {
			failed = append(failed, err)
			continue
		}
		removed++
	}
	return removed, errors.Join(failed...)
}
