DROP TABLE {produced};
