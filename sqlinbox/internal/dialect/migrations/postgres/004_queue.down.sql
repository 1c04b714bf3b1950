DROP TABLE {lanes};
DROP TABLE {steps};
DROP TABLE {queue};
