package mutants

const claims = "TestClaimsThatAreNotAsTheyShouldBeAreRefused/"

var taskauthRooms = []room{
	{"worker/taskauth/taskauth.go", []bug{
		{
			name: "the issuer is not checked",
			old: `		return errIssuer
`,
			new: `		_ = iss
`,
			test: claims + "other_issuer",
		},
		{
			name: "the issuer may be named by plain http",
			old:  `iss != "https://accounts.google.com" &&`,
			new:  `iss != "https://accounts.google.com" && iss != "http://accounts.google.com" &&`,
			test: claims + "issuer_by_http",
		},
		{
			name: "an email that is verified in words is accepted",
			old:  `c["email_verified"] != true:`,
			new:  `c["email_verified"] != true && c["email_verified"] != "true":`,
			test: claims + "email_verified_text",
		},
		{
			name: "any account may call",
			old:  `!slices.Contains(v.accounts, email)`,
			new:  `len(v.accounts) == 0`,
			test: claims + "another_account",
		},
	}},
	{"worker/taskauth/proof.go", []bug{
		{
			name: "the audience is not checked",
			old: `raw, p.audience)
	if err != nil {
		return nil, p.refusal(t.claims)
	}
`,
			new: `raw, "")
	if err != nil {
		return nil, p.refusal(t.claims)
	}
	payload.Claims["aud"] = p.audience
`,
			test: claims + "other_audience",
		},
		{
			name: "a token is taken before its time",
			old:  `[]string{"nbf", "iat"}`,
			new:  `[]string{"iat"}`,
			test: claims + "not_before_later",
		},
	}},
	{"worker/taskauth/token.go", []bug{
		{
			name: "any algorithm is accepted",
			old:  `header.Algorithm != of.algorithm`,
			new:  `header.Algorithm == ""`,
			test: "TestAForgedSignatureIsUnauthenticated/ES256,_proper",
		},
		{
			name: "critical header parameters are ignored",
			old:  `header.Critical != nil`,
			new:  `false`,
			test: "TestATokenWithCriticalParametersIsRefusedThoughItsSignatureHolds",
		},
		{
			name: "a proxy's signature may have any length",
			old:  `of.signature > 0 && len(decoded[2]) != of.signature`,
			new:  `of.signature < 0`,
			test: "TestAProxysSignatureOfAnotherLengthIsRefused",
		},
	}},
	{"worker/taskauth/keyring.go", []bug{{
		name: "stale keys are trusted for ever",
		old: `	if now.Sub(k.got) >= maxStale {
		set = nil
	}
`,
		test: "TestAnOutageIsSurvivedForADayAndThenNothingPasses",
	}}},
}
