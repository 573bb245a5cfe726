// Empty. A package with functions that have no body, such as those of gVisor
// that the tests call, needs an assembly file.
