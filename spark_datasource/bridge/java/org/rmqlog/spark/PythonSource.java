package org.rmqlog.spark;

import java.util.Locale;
import java.util.Map;
import java.util.TreeMap;

import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The Python source behind the bridge, and the options by which the bridge talks to it.
 * README.md beside the jar is the contract.
 */
final class PythonSource {
  /** Options of this prefix belong to the bridge; users' own are dropped. */
  static final String RESERVED = "__rmqlog.";

  static final String FILTERS = RESERVED + "filters";
  static final String LIMIT = RESERVED + "limit";
  static final String AGGREGATE = RESERVED + "aggregate";
  static final String METADATA = RESERVED + "metadata";
  static final String CATALOG = RESERVED + "catalog";
  static final String TIMESTAMP_AS_OF = RESERVED + "timestampAsOf";
  static final String QUERY_ID = RESERVED + "queryId";

  private static final String BRIDGE = RESERVED + "bridge";
  private static final String CONTRACT_VERSION = "1";
  private static final String NAME_SETTING = "spark.rmqlog.pythonSource";

  private PythonSource() {}

  /** The name under which Spark knows the Python source. */
  static String name() {
    return SQLConf.get().getConfString(NAME_SETTING, RmqlogDataSource.SHORT_NAME);
  }

  /**
   * A Python source that no other query has seen. Spark keeps what it planned on this object, so
   * sharing one between queries would give one query the rows of another.
   */
  static PythonDataSourceV2 fresh() {
    PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(name());
    return source;
  }

  /** Asks Python's {@code schema()}: the fields are the answer. */
  static StructType ask(Map<String, String> options) {
    return fresh().inferSchema(spoken(options));
  }

  /** The options as Python gets them, with the mark that the bridge is there. */
  static CaseInsensitiveStringMap spoken(Map<String, String> options) {
    Map<String, String> all = copy(options);
    all.put(BRIDGE, CONTRACT_VERSION);
    return new CaseInsensitiveStringMap(all);
  }

  /** A copy of a user's options, without those that only the bridge may set. */
  static Map<String, String> fromUser(Map<String, String> options) {
    Map<String, String> own = copy(options);
    own.keySet().removeIf(key -> key.toLowerCase(Locale.ROOT).startsWith(RESERVED));
    return own;
  }

  /** A mutable copy that ignores the case of keys and keeps how they were written. */
  static Map<String, String> copy(Map<String, String> options) {
    Map<String, String> copy = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
    copy.putAll(
        options instanceof CaseInsensitiveStringMap map ? map.asCaseSensitiveMap() : options);
    return copy;
  }
}
