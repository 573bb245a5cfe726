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
	case n.MaskRequestHost != "":
		return unsupported("network.maskRequestHost")
	case n.AllowPublicTraffic != nil && !*n.AllowPublicTraffic:
		return unsupported("network.allowPublicTraffic")
	}
	return nil
}
