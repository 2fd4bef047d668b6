package mutants

const claims = "TestInvalidClaimsAreRefused/"

var taskauthRooms = []room{
	{"worker/taskauth/taskauth.go", []bug{
		{
			name: "an unverified email is accepted",
			old:  `!c.EmailVerified`,
			new:  `false`,
			test: claims + "email_unverified",
		},
		{
			name: "any account may call",
			old:  `!slices.Contains(v.accounts, c.Email)`,
			new:  `len(v.accounts) == 0`,
			test: claims + "another_account",
		},
	}},
	{"worker/taskauth/proof.go", []bug{
		{
			name: "the issuer is not checked",
			old:  `!slices.Contains(p.of.issuers, c.Issuer)`,
			new:  `len(p.of.issuers) == 0`,
			test: claims + "other_issuer",
		},
		{
			name: "the audience is not checked",
			old:  `!slices.Equal(c.Audience, jwt.Audience{p.audience})`,
			new:  `len(c.Audience) == 0`,
			test: claims + "other_audience",
		},
		{
			name: "a token needs no expiry",
			old: `	case c.Expiry == nil:
		return errNoExpiry
`,
			new: `	case c.Expiry == nil:
		return nil
`,
			test: claims + "no_expiry",
		},
		{
			name: "a token is accepted before its time",
			old:  `case c.NotBefore != nil && int64(*c.NotBefore) > latest, `,
			new:  `case `,
			test: claims + "not_before_later",
		},
		{
			name: "any algorithm is accepted",
			old:  `[]jose.SignatureAlgorithm{p.of.algorithm}`,
			new:  `[]jose.SignatureAlgorithm{jose.HS256, jose.RS256, jose.ES256}`,
			test: "TestAForgedSignatureIsUnauthenticated/ES256,_proper",
		},
		{
			name: "the signature is not verified",
			old:  `token.Claims(key, &c) != nil`,
			new:  `key == nil || token.UnsafeClaimsWithoutVerification(&c) != nil`,
			test: "TestAnotherPayloadUnderAGoodSignatureIsUnauthenticated",
		},
	}},
	{"worker/taskauth/keys.go", []bug{{
		name: "stale keys are trusted for ever",
		old:  `now.Sub(k.got) >= maxStale`,
		new:  `k.keys == nil`,
		test: "TestKeysAreUsedForADayWithoutThePage",
	}}},
}
