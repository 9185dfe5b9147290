package org.rmqlog.spark;

import java.net.URL;
import java.util.Optional;
import java.util.stream.Stream;

import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.PythonBatchWriterFactory;
import org.apache.spark.sql.types.StructType;
import scala.jdk.javaapi.CollectionConverters;

/** Python's write, whose tasks make the records of plain rows themselves if Python says how. */
record StagingWrite(Write python, StructType schema) implements Write {
  @Override
  public String description() {
    return python.description();
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return python.supportedCustomMetrics();
  }

  @Override
  public CustomTaskMetric[] reportDriverMetrics() {
    return python.reportDriverMetrics();
  }

  @Override
  public BatchWrite toBatch() {
    return new Batch(python.toBatch(), schema);
  }

  private record Batch(BatchWrite python, StructType schema) implements BatchWrite {
    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      DataWriterFactory factory = python.createBatchWriterFactory(info);
      Optional<String> recipe =
          factory instanceof PythonBatchWriterFactory known && reachesExecutors()
              ? StagingRecipe.find(known.pickledWriteFunc())
              : Optional.empty();
      return recipe.<DataWriterFactory>map(json -> new Factory(factory, schema, json))
          .orElse(factory);
    }

    /**
     * The commit takes one message for each partition, whichever attempt it is of. With Spark's
     * coordinator an attempt that loses against a copy of itself would count as a failed one.
     */
    @Override
    public boolean useCommitCoordinator() {
      return false;
    }

    @Override
    public void onDataWriterCommit(WriterCommitMessage message) {
      python.onDataWriterCommit(message);
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
      python.commit(messages);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
      python.abort(messages);
    }

    /** Whether executors have this jar: on a cluster it may be on the driver's path alone. */
    private static boolean reachesExecutors() {
      SparkContext context = SparkContext.getOrCreate();
      if (context.isLocal()) {
        return true;
      }
      URL location = StagingWrite.class.getProtectionDomain().getCodeSource().getLocation();
      String path = location.getPath();
      String name = path.substring(path.lastIndexOf('/') + 1);
      Stream<String> jars = CollectionConverters.asJava(context.listJars()).stream();
      return jars.anyMatch(jar -> jar.endsWith("/" + name))
          || context.getConf().get("spark.executor.extraClassPath", "").contains(name);
    }
  }

  private record Factory(DataWriterFactory python, StructType schema, String recipe)
      implements DataWriterFactory {
    private static final long serialVersionUID = 1;

    @Override
    public DataWriter<InternalRow> createWriter(int partition, long attempt) {
      return new StagingDataWriter(
          python.createWriter(partition, attempt), schema, StagingRecipe.of(recipe), partition,
          attempt);
    }
  }
}
