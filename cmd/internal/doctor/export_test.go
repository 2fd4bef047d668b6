package doctor

// NeededGrants gives the tests grants.
var NeededGrants = neededGrants

// Rule returns the name of the rule about the grant.
func (g *Grant) Rule() string { return g.rule }
