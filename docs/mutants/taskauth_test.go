package mutants

const claims = "TestInvalidClaimsAreRefused/"

var taskauthRooms = []room{
	{"internal/taskauth/taskauth.go", []bug{
		seed("an unverified email is accepted", claims+"email_unverified",
			`!c.EmailVerified`, `false`),
		seed("any account may call", claims+"another_account",
			`!slices.Contains(v.accounts, c.Email)`, `len(v.accounts) == 0`),
	}},
	{"internal/taskauth/token.go", []bug{
		seed("the issuer is not checked", claims+"other_issuer",
			`!slices.Contains(p.of.issuers, c.Issuer)`, `len(p.of.issuers) == 0`),
		seed("the audience is not checked", claims+"other_audience",
			`!slices.Equal(c.Audience, jwt.Audience{p.audience})`, `len(c.Audience) == 0`),
		seed("a token needs no expiry", claims+"no_expiry",
			`	case c.Expiry == nil:
		return errNoExpiry
`,
			`	case c.Expiry == nil:
		return nil
`),
		seed("a token is accepted before its time", claims+"not_before_later",
			`case c.NotBefore != nil && int64(*c.NotBefore) > latest, `, `case `),
		seed("any algorithm is accepted", "TestAForgedSignatureIsUnauthenticated/ES256,_proper",
			`[]jose.SignatureAlgorithm{p.of.algorithm}`,
			`[]jose.SignatureAlgorithm{jose.HS256, jose.RS256, jose.ES256}`),
		seed("the signature is not verified", "TestAnotherPayloadUnderAGoodSignatureIsUnauthenticated",
			`token.Claims(key, &c, &c.all) != nil`, `key == nil || token.UnsafeClaimsWithoutVerification(&c) != nil`),
	}},
	{"internal/taskauth/keys.go", []bug{seed("stale keys are trusted for ever", "TestKeysAreUsedForADayWithoutThePage",
		`now.Sub(k.got) >= maxStale`, `k.keys == nil`)}},
}
