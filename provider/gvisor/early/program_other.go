//go:build !amd64

package early

const memfdCreate, closeOnExec = 0, 0

var program []byte // become leaves it to this one
