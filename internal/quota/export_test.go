package quota

// Len is how many tenants are remembered.
func (m *Meter) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.tenants)
}
