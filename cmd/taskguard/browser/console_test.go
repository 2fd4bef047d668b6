package browser

import (
	"testing"

	"taskguard/cmd/chromiumtest"
)

// One Chromium serves all tests, as starting it takes seconds. Those that need the focus
// run before the others.
func TestTheConsole(t *testing.T) {
	p := chromiumtest.NewProfile(t)
	for name, test := range map[string]func(*testing.T, *chromiumtest.Profile){
		"an analysis is unlocked by the keyboard alone":    anAnalysisIsUnlockedByTheKeyboardAlone,
		"the focus stays on a filter whose number changes": theFocusStaysOnAFilterWhoseNumberChanges,
		"a page that is hidden asks for nothing":           aPageThatIsHiddenAsksForNothing,
	} {
		t.Run(name, func(t *testing.T) { test(t, p.In(t)) })
	}
	for name, test := range map[string]func(*testing.T, *chromiumtest.Profile){
		"a stale lock that its owner has renewed is asked about again":           aStaleLockThatItsOwnerHasRenewedIsAskedAboutAgain,
		"a page from before the console was started anew can still confirm":      aPageFromBeforeTheConsoleWasStartedAnewCanStillConfirm,
		"input and result are in no page unless they are asked for":              inputAndResultAreInNoPageUnlessTheyAreAskedFor,
		"the list follows the database without a reload":                         theListFollowsTheDatabaseWithoutAReload,
		"a page of one follows it without a reload":                              aPageOfOneFollowsItWithoutAReload,
		"the numbers are those of all analyses":                                  theNumbersAreThoseOfAllAnalyses,
		"the time left counts down and a lock that is not renewed turns stale":   theTimeLeftCountsDownAndALockThatIsNotRenewedTurnsStale,
		"the list is filtered by state and by lock":                              theListIsFilteredByStateAndByLock,
		"an analysis is found by a part of its id and an older one by all of it": anAnalysisIsFoundByAPartOfItsIdAndAnOlderOneByAllOfIt,
		"a pause keeps the page as it is":                                        aPauseKeepsThePageAsItIs,
		"a page whose console is gone says so and comes back":                    aPageWhoseConsoleIsGoneSaysSoAndComesBack,
		"a page that is told nothing says so and its times stand still":          aPageThatIsToldNothingSaysSoAndItsTimesStandStill,
		"a page says when the database does not answer and goes on when it does": aPageSaysWhenTheDatabaseDoesNotAnswerAndGoesOnWhenItDoes,
		"every page is readable in both themes and fits a small screen":          everyPageIsReadableInBothThemesAndFitsASmallScreen,
		"a stuck analysis stands first however many were updated since":          aStuckAnalysisStandsFirstHoweverManyWereUpdatedSince,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, p.In(t))
		})
	}
}
