package tests

// crashes are the cases about crash and lost connections (B).
func (s *suite) crashes() []testCase {
	return []testCase{}
}

// crashTasks are what the children of these cases do.
func (s *suite) crashTasks() map[string]taskFunc {
	return map[string]taskFunc{}
}
