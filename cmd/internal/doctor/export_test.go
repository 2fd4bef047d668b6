package doctor

// NeededGrants gives the tests grants.
var NeededGrants = neededGrants
