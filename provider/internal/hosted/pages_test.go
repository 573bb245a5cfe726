package hosted_test

import (
	"net/url"
	"slices"
	"testing"

	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// What is removed while a list is read does not hide the rest.
func TestCounted(t *testing.T) {
	api := &rest.Client{Base: &url.URL{Host: "service.test"}}
	all, reads := []int{1, 2, 3, 4, 5}, 0
	page := func(n, have int) ([]int, int64, error) {
		if reads++; reads == 2 {
			all = all[1:]
		}
		from := min(2*(n-1), len(all))
		if n > 1 && from != have {
			t.Errorf("page %d: %d are known, want %d", n, have, from)
		}
		return all[from:min(from+2, len(all))], int64(len(all)), nil
	}
	got, err := hosted.Counted(api, page)
	if err != nil || !slices.Equal(got, []int{2, 3, 4, 5}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err = hosted.Counted(api, func(int, int) ([]int, int64, error) { return nil, 0, nil }); err != nil || len(got) > 0 {
		t.Errorf("an empty list: %v, %v", got, err)
	}
	total := int64(100_000)
	_, err = hosted.Counted(api, func(int, int) ([]int, int64, error) {
		total--
		return []int{1}, total, nil
	})
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("a list that never rests: %v, want unavailable", err)
	}
}
