package policy

// Signature is a detached signature that was found beside an image, as cosign
// writes them.
type Signature struct {
	Subject   string // the digest that it was found for: the image's own, or that of an index that led to it
	Payload   []byte // what was signed, JSON
	Signature []byte
}
