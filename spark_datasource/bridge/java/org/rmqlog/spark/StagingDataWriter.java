package org.rmqlog.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;

import com.google.common.collect.Iterators;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;

/**
 * Stages the rows of one partition as long as they are plain. The first one that is not, and all
 * behind it, go to Python's writer, which knows what to do with any row or what to say of it.
 */
final class StagingDataWriter implements DataWriter<InternalRow> {
  private static final CustomTaskMetric[] NO_METRICS = {};

  private final DataWriter<InternalRow> python;
  private final StructType schema;
  private final StagingRecipe recipe;
  private final int partition;
  private final long attempt;
  private boolean isPythonAtWork;

  StagingDataWriter(
      DataWriter<InternalRow> python, StructType schema, StagingRecipe recipe, int partition,
      long attempt) {
    this.python = python;
    this.schema = schema;
    this.recipe = recipe;
    this.partition = partition;
    this.attempt = attempt;
  }

  @Override
  public void writeAll(Iterator<InternalRow> rows) throws IOException {
    // Spark calls its Python process before it asks for a row: that one gets ready meanwhile.
    python.writeAll(new RowsLeft(rows));
  }

  /** The rows that are left for Python. Those in front are staged when the first is asked for. */
  private final class RowsLeft implements Iterator<InternalRow> {
    private final Iterator<InternalRow> rows;
    private Iterator<InternalRow> left;

    RowsLeft(Iterator<InternalRow> rows) {
      this.rows = rows;
    }

    @Override
    public boolean hasNext() {
      if (left == null) {
        try {
          left = stage(rows);
        } catch (IOException failed) {
          throw new UncheckedIOException(failed);
        }
        isPythonAtWork = true;
      }
      return left.hasNext();
    }

    @Override
    public InternalRow next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      return left.next();
    }
  }

  /** Stages the plain rows in front; gives those that are left. */
  private Iterator<InternalRow> stage(Iterator<InternalRow> rows) throws IOException {
    String path = recipe.folder() + "/" + partition + "-" + attempt + "-plain";
    try (StagedFiles files = new StagedFiles(path, recipe)) {
      RecordEncoder encoder = new RecordEncoder(recipe, schema, files, partition);
      while (rows.hasNext()) {
        InternalRow row = rows.next();
        if (!encoder.add(row)) {
          files.finish(encoder.dealtRows());
          return Iterators.concat(List.of(row).iterator(), rows);
        }
      }
      files.finish(encoder.dealtRows());
      return rows;
    }
  }

  @Override
  public void write(InternalRow row) throws IOException {
    throw new UnsupportedOperationException("rows come all at once");
  }

  @Override
  public WriterCommitMessage commit() throws IOException {
    return python.commit();
  }

  @Override
  public void abort() throws IOException {
    python.abort();
  }

  @Override
  public void close() throws IOException {
    python.close();
  }

  @Override
  public CustomTaskMetric[] currentMetricsValues() {
    // Spark asks once in a hundred rows.
    return isPythonAtWork ? python.currentMetricsValues() : NO_METRICS;
  }
}
