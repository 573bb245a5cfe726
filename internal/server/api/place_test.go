package api

import "testing"

func TestPlace(t *testing.T) {
	for location, want := range map[string]string{
		"body.labels": "body.labels", "body.mounts[0].source": "body.mounts[0].source", "query.limit": "query.limit", "header.Idempotency-Key": "header.Idempotency-Key",
		"body.imgae": "body.imgae", "body.ghp_0123456789abcdef": "body.…", "body.env.AKIAIOSFODNN7EXAMPLE": "body.env.…", "body": "body", "": "",
		"body.aLongWordThatNobodyCallsAField": "body.…", "body.a b": "body.…", "body.a\x1b[2J": "body.…", "body.x[canary]": "body.…", "body.é": "body.…",
	} {
		if got := place(location); got != want {
			t.Errorf("%q becomes %q, want %q", location, got, want)
		}
	}
}
