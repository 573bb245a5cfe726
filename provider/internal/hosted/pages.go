package hosted

import "github.com/atoll-run/atoll/provider/internal/rest"

const (
	// maxPages limits a list.
	maxPages = 10_000
	// readings is how often a list is read that changes while it is read.
	readings = 10
)

// Counted returns a whole list whose pages are counted. page returns the page n,
// from 1 on, of a list of which have entries are known, and how many there are in
// all. What is removed meanwhile moves the rest to earlier pages, so that some
// would be missed: then the list is read again.
func Counted[T any](api *rest.Client, page func(n, have int) (items []T, total int64, err error)) ([]T, error) {
	for range readings {
		all, first := []T{}, int64(0)
		for n := 1; n <= maxPages; n++ {
			items, total, err := page(n, len(all))
			if err != nil {
				return nil, err
			}
			if n == 1 {
				first = total
			}
			if total < first {
				break
			}
			if all = append(all, items...); len(items) == 0 || int64(len(all)) >= total {
				return all, nil
			}
		}
	}
	return nil, api.ProtocolError("the service's list changes while it is read")
}

// Chained returns a whole list whose pages name the next one. page returns the
// page at a cursor, "" for the first, and the cursor of the next, or "".
func Chained[T any](api *rest.Client, page func(cursor string) (items []T, next string, err error)) (all []T, err error) {
	cursor := ""
	for range maxPages {
		items, next, err := page(cursor)
		if err != nil {
			return nil, err
		}
		if all = append(all, items...); next == "" {
			return all, nil
		}
		cursor = next
	}
	return nil, api.ProtocolError("the service's list has no end")
}
