DROP TABLE {operations};
