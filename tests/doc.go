// Package tests is the conformance suite of inbox stores: [TestStore] runs on every driver and database, and a new one
// joins by writing a [Harness].
//
// A case is named after the line of the failure table it proves (TestA2_…); `make scenarios` prints which line was
// proved where. Sizes are a tenth of the full ones unless INBOX_TEST_SCALE=1 (see [Scale]).
package tests
