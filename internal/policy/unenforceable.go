package policy

// Unenforceable is what is done about rules that a provider cannot enforce.
type Unenforceable string

// What can be done about them.
const (
	Refuse  Unenforceable = "refuse" // nothing is made; what is meant by an empty value
	Narrow  Unenforceable = "narrow" // what the provider would let through wrongly is not reached at all
	LetPass Unenforceable = "allow"  // the provider lets more through than the rules say
)
