package policy

// Signature is a detached signature of an image, as cosign writes it.
type Signature struct {
	Subject   string // digest that it was found for: that of the image or of an index that contains it
	Payload   []byte // the signed content, JSON
	Signature []byte
}
