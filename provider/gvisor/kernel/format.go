package kernel

// StateFormat numbers what we change of the state that gVisor saves. Raise it
// with every change after which a kernel cannot restore what one before it
// saved: to what this package adds to the state or leaves out of it, to the
// flags of a kernel, or to what is mounted in every sandbox. It is a variable so
// that a test can build an Atoll of another format.
var StateFormat = "2"
