package boxlite

// Interfaces is the script that looks for a network.
const Interfaces = interfaces
