package org.rmqlog.spark;

import java.util.Map;
import java.util.TreeMap;

import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * {@code format("rmqlog")} in the JVM. It stands in front of the Python source of the same name,
 * because Spark offers filters, columns, limits and aggregates to a JVM source but not to a Python
 * one.
 */
public final class RmqlogDataSource implements TableProvider, DataSourceRegister {
  static final String SHORT_NAME = "rmqlog";

  @Override
  public String shortName() {
    return SHORT_NAME;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    return PythonSource.ask(sourceOptions(options));
  }

  @Override
  public Table getTable(
      StructType schema, Transform[] partitioning, Map<String, String> properties) {
    Map<String, String> options = sourceOptions(properties);
    StructType current =
        isStoredTable(properties) ? renewMetadata(schema, PythonSource.ask(options)) : schema;
    return new RmqlogTable(SHORT_NAME, current, new CaseInsensitiveStringMap(options));
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  /** Whether these are the properties of a {@code CREATE TABLE}, not the options of a query. */
  private static boolean isStoredTable(Map<String, String> properties) {
    return SHORT_NAME.equalsIgnoreCase(properties.get(TableCatalog.PROP_PROVIDER));
  }

  /**
   * The options of the source. A stored table mixes them with Spark's own properties (provider,
   * owner, location) and marks them by a prefix; {@code path} also comes from a LOCATION clause.
   */
  private static Map<String, String> sourceOptions(Map<String, String> properties) {
    if (!isStoredTable(properties)) {
      return PythonSource.fromUser(properties);
    }
    Map<String, String> options = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
    PythonSource.copy(properties).forEach((key, value) -> {
      if (key.equalsIgnoreCase("path")) {
        options.putIfAbsent(key, value);
      } else if (key.startsWith(TableCatalog.OPTION_PREFIX)) {
        options.put(key.substring(TableCatalog.OPTION_PREFIX.length()), value);
      }
    });
    return PythonSource.fromUser(options);
  }

  /** The stored columns with today's metadata: what was stored is the snapshot of the CREATE. */
  private static StructType renewMetadata(StructType stored, StructType today) {
    StructField[] fields = stored.fields().clone();
    for (int index = 0; index < fields.length; index++) {
      StructField field = fields[index];
      Metadata metadata = today.getFieldIndex(field.name()).isDefined()
          ? today.apply(field.name()).metadata()
          : Metadata.empty();
      fields[index] = new StructField(field.name(), field.dataType(), field.nullable(), metadata);
    }
    return new StructType(fields);
  }
}
