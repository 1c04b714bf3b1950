package tests

// startup are the cases about schema and start-up (H).
func (s *suite) startup() []testCase {
	return []testCase{}
}

// startupTasks are what the children of these cases do.
func (s *suite) startupTasks() map[string]taskFunc {
	return map[string]taskFunc{}
}
