package sandbox

// CreateRequest asks for a sandbox.
type CreateRequest struct {
	Spec
	Pull     string `json:"pull,omitempty" enum:"missing,always,never" doc:"when to fetch the image"`
	Platform string `json:"platform,omitempty" maxLength:"64" example:"linux/amd64"`

	// IdempotencyKey makes a repeated request return the sandbox that the first one
	// made. Raw is the body of the request: a different body with the same key is
	// refused.
	IdempotencyKey string `json:"-"`
	Raw            []byte `json:"-"`
	// Abandon makes no sandbox: it ends the first request, whose caller has gone, if
	// that is under way, and finds the sandbox that it made.
	Abandon bool `json:"-"`
}
