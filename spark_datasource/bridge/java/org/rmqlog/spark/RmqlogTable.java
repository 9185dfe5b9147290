package org.rmqlog.spark;

import java.util.EnumSet;
import java.util.Map;
import java.util.Set;

import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What one {@code load()} or one name in the catalog stands for. Two are equal when they show the
 * same snapshot (it is in the schema's metadata), so that Spark's cache never serves an older one.
 *
 * @param name how plans call it
 * @param schema all columns, with the metadata that Python's {@code schema()} put on them
 * @param options the options of the source; those of a single query are laid over them
 */
record RmqlogTable(String name, StructType schema, CaseInsensitiveStringMap options)
    implements SupportsRead, SupportsWrite {

  @Override
  public Set<TableCapability> capabilities() {
    // Any schema: Python checks the columns of a write, and takes some that no read shows.
    return EnumSet.of(
        TableCapability.BATCH_READ, TableCapability.BATCH_WRITE, TableCapability.TRUNCATE,
        TableCapability.ACCEPT_ANY_SCHEMA);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap queryOptions) {
    return new RmqlogScanBuilder(schema, with(queryOptions));
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    Map<String, String> all = with(info.options());
    all.put(PythonSource.QUERY_ID, info.queryId());
    LogicalWriteInfo spoken =
        new WriteInfo(info.schema(), info.queryId(), PythonSource.spoken(all));
    return new PythonWriteBuilder(PythonSource.fresh(), PythonSource.name(), spoken) {
      @Override
      public Write build() {
        return new StagingWrite(super.build(), spoken.schema());
      }
    };
  }

  private Map<String, String> with(CaseInsensitiveStringMap queryOptions) {
    Map<String, String> all = PythonSource.copy(options);
    all.putAll(PythonSource.fromUser(queryOptions));
    return all;
  }

  /** Spark's description of a write, with the table's options beside the query's. */
  private record WriteInfo(StructType schema, String queryId, CaseInsensitiveStringMap options)
      implements LogicalWriteInfo {}
}
