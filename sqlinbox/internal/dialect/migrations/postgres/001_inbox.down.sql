DROP TABLE {horizons};

DROP TABLE {consumers};

DROP TABLE {inbox};
