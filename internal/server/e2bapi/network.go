package e2bapi

// network is what a sandbox may reach and who may reach it.
type network struct {
	AllowPublicTraffic *bool    `json:"allowPublicTraffic"`
	AllowOut           []string `json:"allowOut"`
	DenyOut            []string `json:"denyOut"`
	EgressProxy        any      `json:"egressProxy"`
	MaskRequestHost    string   `json:"maskRequestHost"`
	Rules              any      `json:"rules"`
}

// refuse says what of the network cannot be had. A sandbox has none yet, so
// that to deny more of it changes nothing.
func (n *network) refuse() error {
	switch {
	case n == nil:
		return nil
	case len(n.AllowOut) > 0:
		return unsupported("network.allowOut")
	case n.EgressProxy != nil:
		return unsupported("network.egressProxy")
	case n.Rules != nil:
		return unsupported("network.rules")
	}
	return nil
}

// label notes what concerns the ports.
func (n *network) label(labels map[string]string) {
	if n == nil {
		return
	}
	if n.AllowPublicTraffic != nil && !*n.AllowPublicTraffic {
		labels[labelPrivate] = "true"
	}
	if n.MaskRequestHost != "" {
		labels[labelHost] = n.MaskRequestHost
	}
}
